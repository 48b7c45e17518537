"""``python -m forebay.demo``: train a small network directly from a slow origin, then with forebay.

- ``__main__``: the command; ``training``: the network and its epochs.
- ``pictures``: generated data.
- ``services``: an origin, its digest and a node, as processes of the demo.
"""
