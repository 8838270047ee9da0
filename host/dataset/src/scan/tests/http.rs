//! Scans of files on a web server, which this module implements.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

use super::*;

/// Serves the files of `folder` until the process ends.
fn serve(folder: PathBuf) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let folder = folder.clone();
            std::thread::spawn(move || answer(stream, &folder));
        }
    });
    format!("http://{address}")
}

fn answer(stream: TcpStream, folder: &Path) -> Option<()> {
    let mut lines = BufReader::new(stream.try_clone().ok()?).lines();
    let mut out = stream;
    loop {
        let request = lines.next()?.ok()?;
        let headers: Vec<String> = lines.by_ref().map_while(Result::ok).take_while(|l| !l.is_empty()).collect();
        let mut words = request.split(' ');
        let (method, path) = (words.next()?, words.next()?);
        let Ok(bytes) = fs::read(folder.join(path.trim_start_matches('/'))) else {
            out.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").ok()?;
            continue;
        };
        let range = headers.iter().find_map(|h| h.to_lowercase().strip_prefix("range: bytes=").map(str::to_owned));
        let (status, part) = match range.as_deref().and_then(|r| r.split_once('-')) {
            Some((first, last)) => {
                let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?.min(bytes.len() - 1));
                (
                    format!("206 Partial Content\r\nContent-Range: bytes {first}-{last}/{}", bytes.len()),
                    &bytes[first..=last],
                )
            }
            None => ("200 OK".to_owned(), &bytes[..]),
        };
        let modified = "Last-Modified: Tue, 15 Nov 1994 12:45:26 GMT";
        write!(out, "HTTP/1.1 {status}\r\n{modified}\r\nContent-Length: {}\r\n\r\n", part.len()).ok()?;
        if method != "HEAD" {
            out.write_all(part).ok()?;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_read_over_http() {
    let folder = Folder::new();
    let rows = sample(10_000);
    folder.parquet("in/a.parquet", &rows, 1_000);
    folder.write("b.csv", separated(&rows, ","));
    let server = serve(folder.0.path().to_owned());
    for name in ["in/a.parquet", "b.csv"] {
        let url = format!("{server}/{name}");
        let source = ScanSource { columns: columns(&["x", "n"]), ..source([url.clone()]) };
        let options = ScanOptions { morsel_bytes: 20_000, batch_rows: 1_000 };
        let scan = Scan::open(source, options).await.unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(scan.files(), [url]);
        assert!(scan.morsels().len() > 1);
        let found = batches(&scan).await.unwrap_or_else(|e| panic!("{e}"));
        let found = concat_batches(scan.schema(), &found).expect("a batch");
        assert_eq!(text(&found), text(&rows.project(&[1, 0]).expect("columns")), "{name}");
    }
    let missing = format!("{server}/none.parquet");
    let error = Scan::open(source([missing.clone()]), ScanOptions::default()).await.err().expect("an error");
    assert_eq!(error.to_string(), format!("{missing}: the server has no such file"));
}
