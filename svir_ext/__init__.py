"""Optional blocks on top of svir; import the module you mean, such as `svir_ext.testing`."""
