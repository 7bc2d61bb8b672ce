//! Tells whether the other end of a TCP connection is a process of the same user on this host.
//!
//! **Why.** Such a process could do to this one what it likes. So it need not know the secret of a
//! run, and a user who tries things on one host need not carry it around.
//!
//! **How.** The kernel lists all sockets of this host with their owners. The socket of the other
//! end has the addresses of ours, exchanged, and is in the list only if it is on this host.
//!
//! **Source.** `proc(5)`, and `Documentation/networking/proc_net_tcp.rst` of Linux.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, SocketAddr, TcpStream};

/// The state of a socket whose connection is established.
const ESTABLISHED: &str = "01";

/// Returns true if the other end is a socket of this user on this host.
pub(super) fn is_own(stream: &TcpStream) -> bool {
    let (Ok(there), Ok(here)) = (stream.peer_addr(), stream.local_addr()) else { return false };
    // A socket of IPv6 may be connected over IPv4. The other end need not be such a socket.
    let (there, here) = (canonical(there), canonical(here));
    let list = if there.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" };
    let user = rustix::process::geteuid().as_raw().to_string();
    let Ok(file) = File::open(list) else { return false };
    let mut lines = BufReader::new(file).lines().map_while(Result::ok);
    lines.any(|line| owner(&line, there, here) == Some(&user))
}

fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// Returns the owner of the socket in a line of the list, if it has these addresses.
fn owner(line: &str, local: SocketAddr, remote: SocketAddr) -> Option<&str> {
    let mut words = line.split_whitespace().skip(1);
    let is_it = words.next()? == listed(local) && words.next()? == listed(remote) && words.next()? == ESTABLISHED;
    // In between: the queues, the timer, and the retransmissions.
    words.nth(3).filter(|_| is_it)
}

/// Returns an address as the kernel prints it: words of 32 bits, in the order of this processor.
fn listed(addr: SocketAddr) -> String {
    let octets = match addr.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let words = octets.chunks_exact(4).map(|word| u32::from_ne_bytes([word[0], word[1], word[2], word[3]]));
    let ip: String = words.map(|word| format!("{word:08X}")).collect();
    format!("{ip}:{:04X}", addr.port())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn an_own_socket_is_recognised_over_both_families() {
        for at in ["127.0.0.1:0", "[::1]:0"] {
            // A machine may have no IPv6.
            let Ok(listener) = TcpListener::bind(at) else { continue };
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, _) = listener.accept().unwrap();
            assert!(is_own(&far) && is_own(&near), "{at}");
        }
    }

    #[test]
    fn the_line_of_another_socket_or_another_state_says_nothing() {
        let line = "   7: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4711 1";
        let (local, remote) = ("127.0.0.1:8080".parse().unwrap(), "127.0.0.1:50000".parse().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(owner(line, local, remote), Some("1000"));
        }
        assert_eq!(owner(line, remote, local), None);
        assert_eq!(owner(&line.replace(" 01 ", " 06 "), local, remote), None, "TIME_WAIT has no owner");
        assert_eq!(owner("  sl  local_address rem_address   st", local, remote), None);
    }
}
