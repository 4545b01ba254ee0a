"""Real processes, sockets and disks: what is promised, tried on the shipped commands, and judged from outside."""
