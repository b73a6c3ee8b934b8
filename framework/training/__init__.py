"""The Trainable protocol, and the training of heads and small models."""
