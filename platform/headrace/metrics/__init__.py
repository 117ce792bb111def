"""What a worker says about itself: log lines and Prometheus metrics."""
