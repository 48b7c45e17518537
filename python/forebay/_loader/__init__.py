"""The loader: ``forebay.DataLoader``, its orders, its iterator and its statistics.

- ``dataloader``: PyTorch's ``DataLoader`` with another order; ``iteration``: its iterator;
  ``stats``: what it counts; ``checkpoint``: checks of its states.
- ``order``: what an order and an epoch are.
- ``substitute``: orders that draw cached items first, and their replays.
- ``deterministic``: one order for any number of ranks; ``item_numbers``: lengths and weights.
- ``torch_orders``: PyTorch's own orders, and samplers of the user.
- ``mixture_order``: the order of a ``forebay.Mixture``.
- ``sampler``: ``forebay.Sampler``, the substitute order for other loaders.
"""
