//! Tables of text.

use std::fmt::Write;

/// A table whose columns are as wide as they must be: the first to the left, the others to the right.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    let lines: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut text = String::new();
    for (number, line) in lines.iter().enumerate() {
        let cell = |(column, cell): (usize, &String)| match column {
            0 => format!("{cell:<width$}", width = widths[0]),
            _ => format!("  {cell:>width$}", width = widths[column]),
        };
        let line: String = line.iter().enumerate().map(cell).collect();
        let _ = writeln!(text, "{}", line.trim_end());
        if number == 0 {
            let total = widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
            let _ = writeln!(text, "{}", "-".repeat(total));
        }
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn tables_line_up() {
        let rows = [vec!["a".into(), "1".into()], vec!["long one".into(), "12345".into()]];
        let expected = "name       count\n----------------\na              1\nlong one   12345\n\n";
        assert_eq!(table(&["name", " count"], &rows), expected);
    }
}
