//! The `marline` program. All its code is in the library, so that tests can use it.

use std::process::ExitCode;

fn main() -> ExitCode {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    resolver::use_builtin_resolution();
    marline_cli::run()
}

/// Resolution of names with a statically linked glibc.
///
/// Entries of `/etc/nsswitch.conf` other than `files` and `dns` are modules that glibc would load from the machine,
/// together with the machine's own glibc. If that has another version, the lookup fails or the program crashes: with
/// Debian 12's glibc linked in, it crashes on Debian 13 with SIGFPE.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
mod resolver {
    use std::ffi::{c_char, c_int};

    unsafe extern "C" {
        fn __nss_configure_lookup(database: *const c_char, sources: *const c_char) -> c_int;
    }

    /// Uses `/etc/hosts` and then DNS, regardless of the machine's configuration.
    pub(crate) fn use_builtin_resolution() {
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
