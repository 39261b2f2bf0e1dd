"""Pages of HTML that need nothing else: tables, and plots as SVG."""
