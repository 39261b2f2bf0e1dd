"""What people do in the console, and the topic that says who did it."""
