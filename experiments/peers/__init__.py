"""Production engines that the benchmark times beside its own decoders, each in a process of its own."""
