"""Perigee's Python side: what engines need to speak with a Cache Manager."""
