"""Studio: a block editor in the browser for pages of `rowgrad.graph`. `rowgrad studio` opens it."""
