"""What a person or a model is shown of a session. Every place that shows a number takes it from here."""
