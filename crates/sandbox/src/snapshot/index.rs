//! What one layer holds.
