// The page in a browser: the token and the page to open stand in the address.

import { createRoot } from "react-dom/client";
import { connect } from "./state/documents";
import { HttpTransport } from "./transport/http";
import { App } from "./view/App";
import "./styles/studio.css";

const asked = new URLSearchParams(location.search);
const base = new URL("./", location.href).href;
createRoot(document.getElementById("studio")!).render(<App />);
void connect(new HttpTransport(base, asked.get("token") ?? ""), asked.get("page"));
