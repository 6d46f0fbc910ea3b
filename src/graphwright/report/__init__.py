"""Results, and how they are shown: as text for a terminal and as an offline HTML page."""
