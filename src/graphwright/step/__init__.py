"""What a user hands over, as one traced, flattened, shaped step."""
