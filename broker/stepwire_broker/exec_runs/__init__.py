"""Records of the programs that the executor `exec` starts, so that a later broker process can end those left over."""
