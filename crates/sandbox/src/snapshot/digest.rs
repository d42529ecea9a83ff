//! One number for the merged view of a chain.
