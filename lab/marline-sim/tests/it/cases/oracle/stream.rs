//! Stream check: one side read exactly what the other wrote, in order and once.

use marline_sim::Report;

/// Checks one direction: no wrong and no additional bytes.
///
/// # Errors
/// If the check fails; the text is for a failure message.
pub fn prefix(writer: &Report, reader: &Report) -> Result<(), String> {
    if let Some(at) = reader.wrong_at {
        return Err(format!("byte {at} is wrong ({} read)", reader.read));
    }
    if reader.read > writer.written {
        return Err(format!("{} bytes read, {} written", reader.read, writer.written));
    }
    Ok(())
}

/// Checks one direction of a run that should have completed.
///
/// # Errors
/// If the check fails; the text is for a failure message.
pub fn complete(writer: &Report, reader: &Report) -> Result<(), String> {
    prefix(writer, reader)?;
    if reader.read != writer.written {
        let (read, written) = (reader.read, writer.written);
        return Err(format!("{read} of {written} bytes read; closed: {:?}", reader.closed));
    }
    if writer.shutdown_at.is_none() || reader.eof_at.is_none() {
        let (shutdown, eof) = (writer.shutdown_at, reader.eof_at);
        return Err(format!("shut down at {shutdown:?}, end of stream at {eof:?}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use marline_time::Instant;

    #[test]
    fn wrong_missing_and_extra_bytes_are_distinguished() {
        let report = |written, read, wrong_at| Report {
            written,
            read,
            wrong_at,
            shutdown_at: Some(Instant::ZERO),
            eof_at: Some(Instant::ZERO),
            ..Report::default()
        };
        let writer = report(10, 0, None);
        assert_eq!(complete(&writer, &report(0, 10, None)), Ok(()));
        assert_eq!(prefix(&writer, &report(0, 9, None)), Ok(()));
        assert!(complete(&writer, &report(0, 9, None)).unwrap_err().starts_with("9 of 10"));
        assert!(prefix(&writer, &report(0, 11, None)).unwrap_err().contains("11 bytes read"));
        assert!(prefix(&writer, &report(0, 10, Some(3))).unwrap_err().contains("byte 3"));
        let open = Report { eof_at: None, ..report(0, 10, None) };
        assert!(complete(&writer, &open).unwrap_err().contains("end of stream at None"));
    }
}
