"""Tables and figures of Leviathan, Kalman and Matias (ICML 2023), published values next to ours."""
