"""What people and machines see of MFS: metrics, live views, traces."""
