//! Real-time priority of the emulator's thread, if permitted: a link must not wait for programs that use it.

use std::num::NonZeroU64;

/// Nice value to use if real-time scheduling is refused.
const NICE: i32 = -15;

/// Gives the calling thread the best timer precision and priority that the system grants this user, and returns
/// whether it has real-time scheduling. A refusal is not an error, but is visible in the reported lateness.
pub(crate) fn raise_priority() -> bool {
    // The default timer slack of 50 us is added to every sleep.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let real_time = set_real_time();
    if !real_time {
        let _ = rustix::process::setpriority_process(None, NICE);
    }
    real_time
}

/// Requests the lowest real-time priority: above all ordinary threads, below the system's own real-time threads.
/// The kernel reserves 5 % of every second for other threads, so even a spinning thread cannot block a machine.
fn set_real_time() -> bool {
    // The kernel's `struct sched_param` is just this number. The call is made directly because musl's wrapper fails.
    let priority: libc::c_int = 1;
    let this_thread: libc::pid_t = 0;
    // SAFETY: the kernel reads one int at the address, which lives for the call.
    let result = unsafe {
        libc::syscall(
            libc::SYS_sched_setscheduler,
            this_thread,
            libc::SCHED_FIFO,
            &raw const priority,
        )
    };
    result == 0
}
