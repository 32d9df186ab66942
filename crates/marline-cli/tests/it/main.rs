//! Tests of the program as its users run it, as processes: one program, so that it is linked once.

mod applications;
mod command_line;
mod dead_download;
mod demo;
mod doctor_paths;
mod end_to_end;
mod endurance;
mod interactive;
mod lab_agree;
mod lab_compare;
mod lab_net;
mod lab_report;
mod lab_run;
mod link;
mod nat;
mod native_direct;
mod native_privileges;
mod native_serve;
mod quickstart;
mod run;
mod ssh_hole;
mod support;
mod tcp_carrier;
mod udp_blocked;
mod units;
mod up;
