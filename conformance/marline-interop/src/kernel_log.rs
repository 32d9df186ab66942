//! Log messages of the kernel during a cell.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;

/// Kernel messages since the log was opened.
#[derive(Debug)]
pub(crate) struct KernelLog(Option<File>);

impl KernelLog {
    /// Starts reading. Without permission there are no messages.
    #[must_use]
    pub(crate) fn from_now() -> KernelLog {
        let open = || -> io::Result<File> {
            let mut options = File::options();
            let file = options.read(true).custom_flags(NONBLOCK).open("/dev/kmsg")?;
            io::Seek::seek(&mut &file, io::SeekFrom::End(0))?;
            Ok(file)
        };
        KernelLog(open().ok())
    }

    /// Warnings and more severe messages since the start or the last call.
    pub(crate) fn kernel_warnings(&mut self) -> Vec<String> {
        const WARNING: u32 = 4;
        let mut complaints = Vec::new();
        let Some(file) = &mut self.0 else { return complaints };
        let mut record = vec![0; 8_192];
        // Each read is one message: `priority,number,time,flags;text`.
        while let Ok(len) = file.read(&mut record) {
            let text = String::from_utf8_lossy(&record[..len]);
            let Some((head, message)) = text.split_once(';') else { continue };
            let priority = head.split(',').next().and_then(|word| word.parse::<u32>().ok());
            if len > 0 && priority.is_some_and(|priority| priority % 8 <= WARNING) {
                complaints.push(message.lines().next().unwrap_or_default().to_owned());
            }
            if len == 0 {
                break;
            }
        }
        complaints
    }
}

const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits() as i32;
