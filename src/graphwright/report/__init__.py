"""Results, and what draws them: terminal text and HTML pages."""
