"""Processes of a job: the node and the agent that it starts, its ranks and its names.

- ``job``: a job's name, directory and agent; ``node``: the node of this machine.
- ``processes``: starting and watching the ``forebay`` binary.
- ``private_files``: opening files in directories that other users can write to.
- ``incarnation``: one run of a process under its job's name.
- ``ranks``: the rank of this process.
- ``shared_counters``: counters of all processes of a job.
- ``warnings``: warnings that point at the user's line.
"""
