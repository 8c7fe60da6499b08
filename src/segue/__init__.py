"""Segue: a Ray-native cluster that serves large language models, prefill and decode apart."""

__version__ = "0.1.0"
