"""Code that runs in the sandbox's own processes; the folder is mounted there alone.

Nothing here may import from `mappa_envs`: `boot` builds the namespaces and the root, `zygote`
imports the libraries once and forks, `worker` is a forked child that runs one step.
"""
