//! Tables of an endpoint that its connections read and write, each with private state and one
//! owner.

pub(crate) mod chunks;
pub(crate) mod context;
pub(crate) mod cookie_keys;
pub(crate) mod demux;
pub(crate) mod fast_join_memory;
pub(crate) mod fast_open_memory;
pub(crate) mod flow_table;
pub(crate) mod initial_numbers;
pub(crate) mod network_memory;
pub(crate) mod outbox;
pub(crate) mod path_faults;
pub(crate) mod path_queues;
pub(crate) mod reply_budget;
pub(crate) mod requests;
pub(crate) mod scheduler_scratch;
pub(crate) mod silent_paths;
pub(crate) mod stateless_reply;
pub(crate) mod subflow_settings;
pub(crate) mod time_wait;

pub(crate) use self::context::Context;
