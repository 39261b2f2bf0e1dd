"""The acts of people in the console, and the topic that records them."""
