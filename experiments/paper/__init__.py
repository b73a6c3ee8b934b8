"""The tables and figures of Leviathan, Kalman and Matias (ICML 2023), ours beside the published ones."""
