//! The `marline` program. All its code is in the library, so that tests can use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    resolver::keep_to_what_is_linked_in();
    marline_cli::run()
}

/// Resolution of names where glibc is linked in.
///
/// What `/etc/nsswitch.conf` names beside `files` and `dns` are modules that glibc would load from the machine, and
/// with them the machine's own glibc. Where that has another version the lookup fails or the program crashes: with
/// Debian 12's linked in, on Debian 13 with its modules, by SIGFPE.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod resolver {
    use std::ffi::{c_char, c_int};

    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
    }

    /// `/etc/hosts`, then DNS, whatever the machine says.
    pub(crate) fn keep_to_what_is_linked_in() {
        // SAFETY: both are strings that end in NUL and live as long as the program, no other thread runs yet, and
        // glibc copies what it keeps.
        let failed =
            unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) != 0 };
        if failed {
            eprintln!(
                "marline: using this machine's /etc/nsswitch.conf, which may name missing modules"
            );
        }
    }
}
