"""Diagnosis of published drafters: their conventions, tried one by one on the target's own text."""
