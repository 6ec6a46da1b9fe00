"""Ships orders that a binding posts: 2xx settles, 422 gives up, 503 is tried again."""
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

seen = set()

class Shipping(BaseHTTPRequestHandler):
    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))
        event = self.headers["x-tidegate-event-id"]
        if not order.get("address"):
            status = 422
        elif order["number"] % 10 == 9 and event not in seen:
            status = 503
        else:
            status = 204
        seen.add(event)
        self.send_response(status)
        self.end_headers()

ThreadingHTTPServer(("127.0.0.1", 9000), Shipping).serve_forever()
