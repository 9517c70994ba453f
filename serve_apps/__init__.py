"""What clients and Ray Serve see: configuration, gateway and replicas. Knows no device."""
