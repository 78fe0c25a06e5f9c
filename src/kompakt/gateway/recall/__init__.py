"""Recall for the model: the gateway offers a tool, answers it itself, and no client ever sees that."""
