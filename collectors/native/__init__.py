"""Native code that can be stopped: runs of models with a time limit, and processes that do not outlive this one."""
