// A fault of the page itself: the work is saved, or kept in the browser until it can be, and a reload goes on from there.

import type { ReactNode } from "react";
import { Component } from "react";
import { saveAll } from "../state/saving";

export class Fallback extends Component<{ children: ReactNode }, { fault: Error | null }> {
  override state = { fault: null as Error | null };

  static getDerivedStateFromError(fault: Error) {
    return { fault };
  }

  override componentDidCatch(): void {
    saveAll();
  }

  override render() {
    const { fault } = this.state;
    if (!fault) return this.props.children;
    return (
      <main className="studio failure" data-theme="system">
        <h1>Something went wrong on this page</h1>
        <p role="alert">{fault.message}</p>
        <p>What you have drawn is kept. A reload goes on from there.</p>
        <button className="primary" onClick={() => location.reload()}>Reload</button>
      </main>
    );
  }
}
