"""Worker processes of the loader, and the way of their batches to the main process.

- ``pool``: PyTorch's workers, replaced when one of them dies.
- ``shm_arena``: shared memory of the workers; ``shm_batches``: batches in it.
- ``collate``: batches that are collated in shared memory.
- ``fork_guard``: shared memory that a forked child may still read.
- ``interrupts``: Ctrl-C that is deferred to the end of a block.
"""
