//! Tests of the program as a process, all in one test program so that it is linked once.

mod lab_agree;
mod lab_compare;
mod lab_import;
mod lab_net;
mod lab_report;
mod lab_run;
mod lab_scenes;
mod lab_what_if;
mod link;
mod support;
