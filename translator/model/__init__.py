"""The kernel model: abstract interpretation of a kernel, a file per kind of construct."""
