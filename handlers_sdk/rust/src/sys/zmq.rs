//! The system's libzmq: contexts and sockets, as far as a worker needs them.

use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::os::raw::{c_char, c_int, c_long, c_short, c_void};

pub(crate) const PUB: c_int = 1;
pub(crate) const SUB: c_int = 2;

// Options of sockets.
pub(crate) const SUBSCRIBE: c_int = 6;
pub(crate) const LINGER: c_int = 17;
pub(crate) const RECONNECT_IVL: c_int = 18;
pub(crate) const RECONNECT_IVL_MAX: c_int = 21;
pub(crate) const MAXMSGSIZE: c_int = 22;
pub(crate) const SNDHWM: c_int = 23;
pub(crate) const RCVHWM: c_int = 24;
pub(crate) const TCP_KEEPALIVE: c_int = 34;
pub(crate) const TCP_KEEPALIVE_CNT: c_int = 35;
pub(crate) const TCP_KEEPALIVE_IDLE: c_int = 36;
pub(crate) const TCP_KEEPALIVE_INTVL: c_int = 37;
pub(crate) const IMMEDIATE: c_int = 39;
pub(crate) const IPV6: c_int = 42;
pub(crate) const CURVE_PUBLICKEY: c_int = 48;
pub(crate) const CURVE_SECRETKEY: c_int = 49;
pub(crate) const CURVE_SERVERKEY: c_int = 50;
pub(crate) const HANDSHAKE_IVL: c_int = 66;
pub(crate) const TCP_MAXRT: c_int = 80;

const DONTWAIT: c_int = 1;
const POLLIN: c_short = 1;
const EINTR: c_int = 4;

/// `zmq_msg_t`: 64 bytes, aligned like a pointer.
#[repr(C, align(8))]
struct Message([u8; 64]);

#[repr(C)]
struct PollItem {
    socket: *mut c_void,
    fd: c_int,
    events: c_short,
    revents: c_short,
}

extern "C" {
    fn zmq_ctx_new() -> *mut c_void;
    fn zmq_ctx_term(context: *mut c_void) -> c_int;
    fn zmq_socket(context: *mut c_void, kind: c_int) -> *mut c_void;
    fn zmq_close(socket: *mut c_void) -> c_int;
    fn zmq_setsockopt(socket: *mut c_void, option: c_int, value: *const c_void, size: usize) -> c_int;
    fn zmq_connect(socket: *mut c_void, endpoint: *const c_char) -> c_int;
    fn zmq_disconnect(socket: *mut c_void, endpoint: *const c_char) -> c_int;
    fn zmq_send(socket: *mut c_void, bytes: *const c_void, size: usize, flags: c_int) -> c_int;
    fn zmq_msg_init(message: *mut Message) -> c_int;
    fn zmq_msg_recv(message: *mut Message, socket: *mut c_void, flags: c_int) -> c_int;
    fn zmq_msg_data(message: *mut Message) -> *mut c_void;
    fn zmq_msg_size(message: *const Message) -> usize;
    fn zmq_msg_more(message: *const Message) -> c_int;
    fn zmq_msg_close(message: *mut Message) -> c_int;
    fn zmq_poll(items: *mut PollItem, count: c_int, timeout_ms: c_long) -> c_int;
    fn zmq_errno() -> c_int;
    fn zmq_strerror(number: c_int) -> *const c_char;
    fn zmq_has(capability: *const c_char) -> c_int;
    fn zmq_curve_public(public: *mut c_char, secret: *const c_char) -> c_int;
}

fn last_error() -> String {
    // SAFETY: zmq_strerror returns a static text for every number.
    unsafe { CStr::from_ptr(zmq_strerror(zmq_errno())) }.to_string_lossy().into_owned()
}

fn checked(code: c_int) -> Result<(), String> {
    if code == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// True if this libzmq was built with CURVE.
pub(crate) fn has_curve() -> bool {
    // SAFETY: the text ends with a NUL.
    unsafe { zmq_has(b"curve\0".as_ptr().cast()) == 1 }
}

/// The public key of this secret key, both in Z85. None: the text is no key.
pub(crate) fn curve_public(secret: &str) -> Option<String> {
    let secret = CString::new(secret).ok()?;
    let mut public = [0_u8; 41];
    // SAFETY: the secret ends with a NUL, and a public key with its NUL has 41 bytes.
    if secret.as_bytes().len() != 40 || unsafe { zmq_curve_public(public.as_mut_ptr().cast(), secret.as_ptr()) } != 0 {
        return None;
    }
    Some(String::from_utf8_lossy(&public[..40]).into_owned())
}

/// A ZeroMQ context. Its end waits for the messages of closed sockets, as long as their LINGER.
pub(crate) struct Context(*mut c_void);

impl Context {
    pub fn new() -> Result<Self, String> {
        // SAFETY: takes nothing.
        let context = unsafe { zmq_ctx_new() };
        if context.is_null() {
            return Err(last_error());
        }
        Ok(Self(context))
    }

    pub fn socket(&self, kind: c_int) -> Result<Socket<'_>, String> {
        // SAFETY: the context is open.
        let socket = unsafe { zmq_socket(self.0, kind) };
        if socket.is_null() {
            return Err(last_error());
        }
        Ok(Socket { socket, context: PhantomData })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context is open, and its sockets cannot outlive it. A signal may interrupt the call.
        while unsafe { zmq_ctx_term(self.0) } != 0 && unsafe { zmq_errno() } == EINTR {}
    }
}

/// A socket. It stays on the thread that made it, because it holds a raw pointer.
pub(crate) struct Socket<'a> {
    socket: *mut c_void,
    context: PhantomData<&'a Context>,
}

impl Socket<'_> {
    pub fn set_int(&self, option: c_int, value: c_int) -> Result<(), String> {
        self.set(option, &value.to_ne_bytes())
    }

    pub fn set_long(&self, option: c_int, value: i64) -> Result<(), String> {
        self.set(option, &value.to_ne_bytes())
    }

    pub fn set(&self, option: c_int, value: &[u8]) -> Result<(), String> {
        // SAFETY: the socket is open, and the slice is valid for its length.
        checked(unsafe { zmq_setsockopt(self.socket, option, value.as_ptr().cast(), value.len()) })
    }

    /// A key in Z85. libzmq wants the NUL, too.
    pub fn set_key(&self, option: c_int, key: &str) -> Result<(), String> {
        let key = CString::new(key).map_err(|error| error.to_string())?;
        self.set(option, key.as_bytes_with_nul())
    }

    pub fn connect(&self, endpoint: &str) -> Result<(), String> {
        let endpoint = CString::new(endpoint).map_err(|error| error.to_string())?;
        // SAFETY: the socket is open, and the text ends with a NUL.
        checked(unsafe { zmq_connect(self.socket, endpoint.as_ptr()) })
    }

    pub fn disconnect(&self, endpoint: &str) -> Result<(), String> {
        let endpoint = CString::new(endpoint).map_err(|error| error.to_string())?;
        // SAFETY: as above.
        checked(unsafe { zmq_disconnect(self.socket, endpoint.as_ptr()) })
    }

    /// Sends one frame, without blocking. A PUB drops it if the peer's queue is full.
    pub fn send(&self, frame: &[u8]) {
        // SAFETY: the socket is open, and libzmq copies the bytes. A signal may interrupt the call before it sends.
        while unsafe { zmq_send(self.socket, frame.as_ptr().cast(), frame.len(), DONTWAIT) } < 0
            && unsafe { zmq_errno() } == EINTR
        {}
    }

    /// Passes the next message to the function, if it is one frame. None: no message has arrived.
    pub fn receive<T>(&self, with: impl FnOnce(&[u8]) -> T) -> Option<Option<T>> {
        let mut message = Message([0; 64]);
        // SAFETY: the message is initialised before it is used and closed once; the slice ends before that.
        unsafe {
            zmq_msg_init(&mut message);
            if zmq_msg_recv(&mut message, self.socket, DONTWAIT) < 0 {
                zmq_msg_close(&mut message);
                return None;
            }
            if zmq_msg_more(&message) != 0 {
                while zmq_msg_more(&message) != 0 && zmq_msg_recv(&mut message, self.socket, DONTWAIT) >= 0 {}
                zmq_msg_close(&mut message);
                return Some(None);
            }
            let (data, size) = (zmq_msg_data(&mut message), zmq_msg_size(&message));
            let frame = if size == 0 { &[][..] } else { std::slice::from_raw_parts(data as *const u8, size) };
            let value = with(frame);
            zmq_msg_close(&mut message);
            Some(Some(value))
        }
    }

    /// Waits until a message has arrived, or the descriptor can be read. Returns whether the descriptor can.
    pub fn poll(&self, fd: Option<c_int>, timeout_ms: i64) -> bool {
        let mut items = [
            PollItem { socket: self.socket, fd: 0, events: POLLIN, revents: 0 },
            PollItem { socket: std::ptr::null_mut(), fd: fd.unwrap_or(-1), events: POLLIN, revents: 0 },
        ];
        let count = if fd.is_some() { 2 } else { 1 };
        // SAFETY: the socket is open, and `count` items are valid. An interrupted call is an early wake-up.
        unsafe { zmq_poll(items.as_mut_ptr(), count, timeout_ms as c_long) };
        items[1].revents != 0
    }
}

impl Drop for Socket<'_> {
    fn drop(&mut self) {
        // SAFETY: the socket is open, and closed once.
        unsafe { zmq_close(self.socket) };
    }
}
