"""keylane inside other frameworks: `faststream` runs a FastStream application's subscribers, `fastapi` starts and ends
pipelines with a FastAPI application. Each is a file that needs the extra of its name.
"""
