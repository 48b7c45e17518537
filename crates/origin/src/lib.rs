//! The stores that own the data, behind one interface.
