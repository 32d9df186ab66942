//! Tests of the codec against bytes, properties and other decoders: one program, so that linking happens once.

mod common;
mod ip;
mod kernel;
mod properties;
mod smoltcp;
