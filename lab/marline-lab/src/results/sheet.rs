//! Files of a table, in one or several formats, with a limit on the rows.

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;

use super::csv;
use super::parquet::ParquetFile;
use super::table::Table;

/// File format.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Comma-separated text. Unknown values are blank, and flags are 1 and 0.
    Csv,
    /// Apache Parquet.
    Parquet,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 2] = [Format::Csv, Format::Parquet];

    /// Name on the command line, and extension of the files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Parquet => "parquet",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = anyhow::Error;

    fn from_str(word: &str) -> anyhow::Result<Format> {
        Format::ALL.into_iter().find(|format| format.name() == word).with_context(|| {
            let words = Format::ALL.map(Format::name).join(", ");
            format!("unknown format `{word}`; known: {words}")
        })
    }
}

/// An open file.
enum Writer {
    Csv(BufWriter<File>),
    Parquet(Box<ParquetFile>),
}

/// Files of one table: `NAME.csv`, `NAME.parquet`.
#[derive(Debug)]
pub struct Sheets {
    name: &'static str,
    sheets: Vec<(PathBuf, Writer)>,
    room: u64,
    sheet: Sheet,
}

/// Size of a written table.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Sheet {
    /// Number of rows in each file.
    pub rows: u64,
    /// Number of rows beyond the limit.
    pub left_out: u64,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Writer::Csv(_) => "csv",
            Writer::Parquet(_) => "parquet",
        })
    }
}

impl Sheets {
    /// Creates the files for tables with these columns in a directory, one per format, with a limit on the rows.
    ///
    /// # Errors
    /// A file cannot be created.
    pub fn create(
        directory: &Path,
        like: &Table,
        formats: &[Format],
        most_rows: u64,
    ) -> anyhow::Result<Sheets> {
        let mut sheets = Vec::new();
        for format in formats {
            let file = directory.join(format!("{}.{format}", like.name()));
            let named = || file.display().to_string();
            let writer = match format {
                Format::Csv => {
                    let mut writer = BufWriter::new(File::create(&file).with_context(named)?);
                    writer.write_all(csv::heading(like).as_bytes()).with_context(named)?;
                    Writer::Csv(writer)
                }
                Format::Parquet => {
                    Writer::Parquet(Box::new(ParquetFile::create(&file, like).with_context(named)?))
                }
            };
            sheets.push((file, writer));
        }
        Ok(Sheets { name: like.name(), sheets, room: most_rows, sheet: Sheet::default() })
    }

    /// Appends the rows of a table with the same columns. `left_out` is the number of rows already omitted from it.
    /// Rows beyond the limit are only counted.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn append(&mut self, table: &Table, left_out: u64) -> anyhow::Result<()> {
        let rows = (table.rows() as u64).min(self.room);
        self.room -= rows;
        self.sheet.rows += rows;
        self.sheet.left_out += left_out + table.rows() as u64 - rows;
        for (file, writer) in &mut self.sheets {
            let written = match writer {
                Writer::Csv(writer) => {
                    let mut line = String::new();
                    (0..rows as usize).try_for_each(|row| {
                        line.clear();
                        csv::row(&mut line, table, row);
                        writer.write_all(line.as_bytes()).map_err(anyhow::Error::from)
                    })
                }
                Writer::Parquet(writer) => writer.append(table, 0..rows as usize),
            };
            written.with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    /// Completes the files.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn close(self) -> anyhow::Result<Sheet> {
        for (file, writer) in self.sheets {
            let closed = match writer {
                Writer::Csv(mut writer) => writer.flush().map_err(anyhow::Error::from),
                Writer::Parquet(writer) => writer.close(),
            };
            closed.with_context(|| file.display().to_string())?;
        }
        Ok(self.sheet)
    }

    /// Name of the table.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}
