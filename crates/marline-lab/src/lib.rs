//! The lab: scenarios in network namespaces over emulated links, and Marline measured beside the
//! kernel's own TCP and MPTCP.
