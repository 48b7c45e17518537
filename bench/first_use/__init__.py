"""Requests of the first use of a URL, counted with real jobs, agents, a node and an origin."""
