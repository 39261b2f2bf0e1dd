"""Administration of groups: look, pause, resume, set offsets."""
