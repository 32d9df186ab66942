//! Integration tests of the values that policies and core exchange, in one program so that it is linked once.

mod reason;
