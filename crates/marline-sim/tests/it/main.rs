//! Tests in virtual time: one program, so that it is linked once.

mod bbr;
mod boxes;
mod bulk;
mod capture;
mod cases;
mod coding;
mod collapse;
mod coupled;
mod dead_download;
mod death;
mod fast_join;
mod first_light;
mod loss_recovery;
mod multimob;
mod new_connections;
mod opening;
mod orders;
mod pairs;
mod papd;
mod policies;
mod redundancy;
mod rows;
mod sleep;
mod speed;
mod tail_probes;
mod worlds;
